"""The objective: advantages, policy loss, optimizer and the update step.

Nothing here knows a model: the step takes a function `(trainable, frozen, GroupBatch) -> TokenLogprobs`.
"""
