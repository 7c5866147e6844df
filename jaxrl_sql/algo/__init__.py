"""The objective: advantages, policy loss, optimizer and the update step.

This package does not depend on the model: the step takes a function `(trainable, frozen, GroupBatch) -> TokenLogprobs`.
"""
