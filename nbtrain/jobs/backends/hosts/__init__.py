"""Backend for machines reached by ssh: DeepSpeed's launcher starts one node agent on each machine."""
