"""Files of questions: JSON lines, indexes of huge files, shares and reasoning traces."""
