LAB_1_REPLACES := scheduler/kv_contiguous.c ref/kv_append.c
LAB_1_REFUSED  := ref_store_row
LAB_1_DEMO     := --device cpu --quick
