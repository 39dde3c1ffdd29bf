"""What an operator asks for beside the running batches: plan, replay, fix, maintain."""
