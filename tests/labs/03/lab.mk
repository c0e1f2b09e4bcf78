LAB_3_REPLACES := scheduler/scheduler.c
LAB_3_DEMO     := --device cpu --quick
