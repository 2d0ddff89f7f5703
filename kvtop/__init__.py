"""The live view of the block pool."""
