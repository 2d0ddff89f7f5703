"""Other engines in processes of their own, each run by a script that needs nothing of ours."""
