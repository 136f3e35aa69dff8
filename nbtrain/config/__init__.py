"""Run configuration: one schema, one loader, one set of rules.

- schema.py: what a run is; load.py: YAML + overrides -> RunConfig; yaml_source.py: file and line of a key
- check.py: rules that join fields; deepspeed.py: the derived DeepSpeed JSON
- batch.py: steps, samples and tokens; parameters.py, flops.py, devices.py: arithmetic that both wings need
"""
