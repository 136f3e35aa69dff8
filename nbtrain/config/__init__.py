"""Run configuration: one schema, one loader, one set of rules.

- schema.py: what a run is; load/: YAML + overrides -> RunConfig; yaml_source.py: file and line of a key
- rules/: rules that join fields; deepspeed/: the derived DeepSpeed JSON
- arithmetic/: steps, tokens, parameters, FLOPs, devices and schedules, for the notebook side and the GPU side
"""
