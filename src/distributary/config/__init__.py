"""The pipeline file: YAML to frozen models, each mistake with its line, each value its origin."""
