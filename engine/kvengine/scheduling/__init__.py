"""How one step is decided; `scheduler.Scheduler` puts the parts together.

`queues` knows who runs and who waits, `step_plan` what a step has decided so far, `token_shares` how many tokens a
request computes in it, `admission` who is let in, `preemption` who has to go, and `drafts` what is guessed ahead.
"""
