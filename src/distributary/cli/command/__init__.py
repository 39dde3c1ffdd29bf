"""The parts that all verbs share: declaration, lake and pipeline, output, live views."""
