"""Text from the demo model, as it is computed: greedy, drawn twice from one prompt, and up to a stop string.

python examples/generate.py
"""

from kvengine.errors import DeviceError
from kvengine.model_files import find_demo_model
from kvengine.sampling_params import SamplingParams
from kvengine.text_generator import Completion, TextDelta, load_generator


def show(delta: TextDelta) -> None:
    """Print text as soon as it is there."""
    print(delta.text, end="" if delta.finish_reason is None else f" [{delta.finish_reason}]\n", flush=True)


def show_outputs(completion: Completion) -> None:
    """Print each output of a prompt, with how likely the model held its tokens to be."""
    for output in completion.outputs:
        mean = sum(token.logprob for token in output.logprobs) / len(output.logprobs)
        print(f"{output.request_id}: {output.text!r}, {mean:.2f} a token, ended by {output.finish_reason}")


try:
    generator = load_generator(find_demo_model())
except DeviceError as error:
    raise SystemExit(f"{error.message}; {error.hint}") from None

print("greedy, as it comes:")
generator.generate(["The capital of France is"], SamplingParams(max_tokens=16), on_delta=show)

print("drawn twice, the prompt computed once:")
drawn = SamplingParams(max_tokens=16, n=2, temperature=0.8, top_p=0.9, seed=7, logprobs=0)
show_outputs(*generator.generate(["Once upon a time"], drawn))

print("up to the end of the first sentence:")
stopped = SamplingParams(max_tokens=40, logprobs=0)
show_outputs(*generator.generate(["A KV cache holds"], stopped, stop=[".\n", ". "]))
