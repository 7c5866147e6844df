"""The SQL environment for other trainers: `episode` is a dialogue and its reward; the other files adapt it to trainers.

None of them needs JAX. `trl` needs no package; `verifiers` and `openenv` import theirs.
"""
