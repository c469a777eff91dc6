"""What the machine can do: cycles of elementary work. The figures of a system come from the contract."""
