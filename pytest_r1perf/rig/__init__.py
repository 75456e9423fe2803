"""The CPU rig: the real SGLang on a CPU, its model, tokenizer and data set."""
