"""Commands of an operator beside the running batches: plan, replay, repair, maintain, back up."""
