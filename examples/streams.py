"""Streams as things: save one, fork one, and let several at different positions advance together.

python examples/streams.py
"""

import tempfile
from pathlib import Path

import torch

import scannable as sc


def main() -> None:
    torch.manual_seed(0)
    model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=100, width=32, chunk_length=16)).eval()
    prompt = torch.randint(100, (1, 1000))
    _, state = model.prefill(prompt, model.initial_state(1))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.safetensors"
        sc.save_state(state, path)
        print(f"{state.position} tokens in {path.stat().st_size:,} bytes on disk")
        resumed = sc.load_state(path)
    branch = state.fork()
    token = torch.tensor([7])
    outputs = [model.step(token, one)[0] for one in (state, branch, resumed)]
    assert all(torch.equal(outputs[0], other) for other in outputs)
    print("the stream, its fork and its copy from disk agree bit for bit")

    positions = (0, 5, 700)
    streams = [model.prefill(prompt[:, :n], model.initial_state(1))[1] for n in positions]
    batch = sc.join(streams)
    for token in torch.randint(100, (40, 3)):
        _, batch = model.step(token, batch)
    print(f"three streams, now at {batch.positions}, advanced in one step each time")
    batch = sc.join([batch.select([2, 0]), model.initial_state(1)])
    print(f"one left, one came, two changed places: {batch.positions}")


if __name__ == "__main__":
    main()
