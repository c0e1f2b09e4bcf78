LAB_10_REPLACES := model/attention/cascade.c ref/merge_states.c
LAB_10_DEMO     := --device cpu --quick
LAB_10_INLINES  := attention_merge_sums
