"""Generate, prepare, augment, audit and repair text-to-SQL data."""
