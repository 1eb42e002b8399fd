/*
 * failpoints.h: what a test build adds (make FAILPOINTS=1).
 */
#ifndef KUDOS_FAILPOINTS_H
#define KUDOS_FAILPOINTS_H

#ifdef __cplusplus
extern "C" {
#endif

/* fails or stops here when the setting says so */
extern void kudos_failpoint(const char *place);
/* whether the next allocation of the core is to fail */
extern bool kudos_allocation_fails(void);
/* batches of the core that this process has opened and not closed */
extern int64 kudos_open_batches;
extern void kudos_define_failpoints(void);

#ifdef __cplusplus
}
#endif

#endif							/* KUDOS_FAILPOINTS_H */
