"""The SQL environment for other trainers: `episode` is a dialogue and its reward, and each other module an adapter.

In a dialogue the policy queries a database in several turns before it answers. No module needs JAX. `trl` needs no
further package; `verifiers` and `openenv` import the packages of these names.
"""
