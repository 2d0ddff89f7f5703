"""Where pictures come from: running engines, recordings, servers; each is read on a thread of its own."""
