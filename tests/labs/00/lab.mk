LAB_0_REPLACES := ref/rmsnorm.c ref/attention.c ref/sample.c
LAB_0_DEMO     := --device cpu --quick
LAB_0_REFUSED  := ref_attend ref_attention_plan ref_merge_states
