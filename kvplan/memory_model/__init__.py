"""What an engine takes of a card besides weights and KV: named parts, each with a range and its evidence.

    EngineStart + StepShape ──> step_limits ──> activation_peak, non_torch, communication, cuda_graphs ──> Parts

`start` says how an engine is started and which limits follow, by version and card. `shape` holds the sizes of a model
that decide the memory of one step. `activation` turns both into the peak of the profiling run. `vllm` and `sglang` put
the parts together. The numbers that no document states are in `profiles/memory`, fitted by `tools/fit_memory`.
"""
