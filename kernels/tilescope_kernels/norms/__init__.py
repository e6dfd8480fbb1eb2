"""LayerNorm and RMSNorm, alone or fused with a residual addition or a linear layer, and GroupNorm."""
