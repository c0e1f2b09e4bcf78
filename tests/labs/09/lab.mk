LAB_9_REPLACES := ref/variant.c
LAB_9_DEMO     := --device cpu
LAB_9_INLINES  := attention_first attention_end attention_shows attention_score
