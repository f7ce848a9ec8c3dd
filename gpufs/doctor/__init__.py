"""What `gpufs doctor` looks at: small functions that each return what they found, and never raise for it."""
