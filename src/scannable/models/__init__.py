"""Models on tokens: their protocol, prefix-scannable models, stacks of layers, and text from them."""
