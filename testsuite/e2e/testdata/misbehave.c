//go:build ignore

/* Extensions that do what they must not. Each test takes one of them: DO is its number. */
#include "margay_ext.h"

static long (*const no_service)(void) = (void *)4242;

#if DO == 7
#define FOUR(x) x x x x

SEC("sched") int misbehave(struct margay_sched *s)
{
	FOUR(FOUR(FOUR(FOUR(FOUR(FOUR(time_ns();)))))) /* more than its fuel, and nothing that Linux would mind */
	FOUR(FOUR(FOUR(FOUR(FOUR(FOUR(time_ns();))))))
	FOUR(FOUR(FOUR(FOUR(FOUR(FOUR(time_ns();))))))
	return MARGAY_DEFAULT;
}
#else
SEC("message") int misbehave(struct margay_message *m)
{
#if DO == 1
	*(volatile int *)(long)0x1000 = 1; /* in no region */
#elif DO == 2
	*(volatile __u8 *)((char *)m + sizeof *m) = 1; /* just behind one */
#elif DO == 3
	for (;;)
		;
#elif DO == 4
	return (int)no_service();
#elif DO == 6
	for (volatile int i = 0; i < 15000; i++) /* almost all of its fuel */
		;
	return MARGAY_CONSUME;
#elif DO == 5
	return 99; /* no verdict */
#endif
	return MARGAY_DELIVER;
}
#endif

char _license[] SEC("license") = "Dual BSD/GPL";
