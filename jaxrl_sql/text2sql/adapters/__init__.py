"""The SQL environment for other trainers: `episode` is a dialogue and its reward, each other file one trainer's form.

None of them needs jax. `trl` needs no package; `verifiers` and `openenv` import theirs.
"""
