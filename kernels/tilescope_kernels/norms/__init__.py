"""LayerNorm and RMSNorm, alone, with a residual addition and with a linear layer."""
