LAB_6_REPLACES := scheduler/block_table.c
LAB_6_DEMO     := --device cpu --quick
