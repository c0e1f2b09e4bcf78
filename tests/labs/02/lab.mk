LAB_2_REPLACES := scheduler/naive_batch.c
LAB_2_DEMO     := --device cpu --quick
