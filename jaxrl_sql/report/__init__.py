"""The report room: from the files of a run folder to one page, `jaxrl-sql report RUN`.

It reads only what is on disk, so a run that was killed, or one that goes on, can be looked at like a finished one.
"""
