"""The text of a pipeline file: parsed with the place of each value, its references, a listing."""
