"""The report of a run folder, `jaxrl-sql report RUN`, and in `view/` the pages of its answers.

It reads only files of the run, so a run that was killed or has not ended is shown like a finished one.
"""
