// Included last by every core file: the build fails where a server header was seen, since a server
// error is a longjmp over the destructors that core frames are full of (docs/architecture.md).
#if defined(POSTGRES_H) || defined(C_H) || defined(PG_VERSION_NUM)
#error "core must not include server headers"
#endif
