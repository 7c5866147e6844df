"""Files of questions: JSON lines, indexes of huge files, random shares of a set, and reasoning traces.

A trace is a teacher's answer to a question: its reasoning and the SQL.
"""
