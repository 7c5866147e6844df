"""What makes and repairs data: generated questions, augmented databases, audits, reasoning."""
