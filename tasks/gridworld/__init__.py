"""Grid worlds of MiniGrid and BabyAI: layouts, a batched twin of the simulator, demonstrations."""
