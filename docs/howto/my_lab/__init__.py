"""The package of docs/howto/extend.md: one of each kind of extension."""
