/*
 * settings.h: the settings of contract section 11, as the server keeps them.
 *
 * Defined by the shim (C), read by the server layer (C++).
 */
#ifndef KUDOS_SETTINGS_H
#define KUDOS_SETTINGS_H

#ifdef __cplusplus
extern "C" {
#endif

/* how many databases one server can have projectors for; sizes shared memory */
#define KUDOS_MAX_DATABASES 64

#define KUDOS_BATCH_SIZE_MIN 1
#define KUDOS_BATCH_SIZE_MAX 100000

extern char *kudos_databases;		/* comma-separated identifiers */
extern char *kudos_schema;			/* schema of the Horde's tables */
extern bool kudos_enabled;
extern int	kudos_batch_size;		/* rows of each kind a cycle claims */
extern int	kudos_interval;			/* ms between ticks */
extern int	kudos_max_catchup_cycles;	/* cycles a tick may run */
extern int	kudos_lock_timeout;		/* ms a cycle waits for one lock */

extern bool kudos_wake_on_commit;
extern char *kudos_trust_threshold;	/* kudos of escrow; empty: nobody is promoted */
extern int	kudos_trust_minimum_age;	/* s since the account was created */
extern int	kudos_suspicion_threshold;	/* suspicions that bar a promotion */

#ifdef __cplusplus
}
#endif

#endif							/* KUDOS_SETTINGS_H */
