"""The report of a run folder, `jaxrl-sql report RUN`, and in `view/` the pages of its answers.

It reads only files of the run, so a run that was killed or has not ended is shown like a finished one.

A group is a question with its answers: those to a prompt in one rollout, or the answer of an evaluation. A phase is a
part of a run (`sft`, `grpo`, `grpo2`) or the evaluation of a split (`eval/SPLIT`). A gold is the reference SQL of a
question, and a rule compares an answer's result with the gold's (docs/reference/rules.md).
"""
