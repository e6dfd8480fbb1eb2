"""Cross-entropy, alone and fused with the linear layer before it."""
