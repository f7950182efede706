// SPDX-License-Identifier: Apache-2.0
/*
 * processes: whose turn it is; processes come and go; and hand-overs.
 *
 * What one process stages another one sees at once only where the library promises it: by a description that
 * both inherited (and, with `family`, by any way within the family).  Everybody else may see it later, up to
 * `lag`, except at a hand-over.  So it is noted who wrote to what by which description, and before an
 * operation touches a file in another way, those who wrote are asked to hand it over (fsync, a lock released,
 * ...).  That, too, is the same natively and under the library, and is noted.
 */
#include "machine.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOK_MILLISECONDS = 200, FAR = 1 << 30 };

static void ring(void)
{
	__atomic_add_fetch(&control->bell, 1, __ATOMIC_SEQ_CST);
	raw_wake(&control->bell);
}

/* Nobody whom we have to reap may end unasked, and nobody goes on alone. */
static void look_around(void)
{
	int status;

	if (__atomic_load_n(&control->failed, __ATOMIC_SEQ_CST) ||
	    (me != 0 && raw(SYS_kill, control->process[0].pid, 0, 0, 0, 0, 0) < 0))
		raw(SYS_exit_group, 3, 0, 0, 0, 0, 0);
	for (int i = 1; i < PROCESSES; i++) {
		const struct process *p = &control->process[i];
		char what[64];

		if (!p->alive || i == me || i == control->dying || p->parent != me || p->pid == 0)
			continue;
		if (raw(SYS_wait4, p->pid, (long)&status, WNOHANG, 0, 0, 0) == p->pid) {
			snprintf(what, sizeof what, "process %d ended with status %d", i, status);
			unexpected(what);
		}
	}
}

static void wait_for_bell(uint32_t seen)
{
	if (__atomic_load_n(&control->bell, __ATOMIC_SEQ_CST) == seen)
		raw_wait(&control->bell, seen, LOOK_MILLISECONDS);
	if (__atomic_load_n(&control->failed, __ATOMIC_SEQ_CST) ||
	    __atomic_load_n(&control->bell, __ATOMIC_SEQ_CST) == seen)
		look_around();
}

uint32_t new_description(void) { return ++control->last_description; }

void processes_start(void)
{
	control->process[0] = (struct process){.pid = getpid(), .alive = true};
	control->reaper = control->dying = control->asked = -1;
	for (int i = 0; i < PROCESSES; i++) {
		for (int k = 0; k < SLOTS; k++)
			control->process[i].slot[k].fd = -1;
		for (int k = 0; k < STREAMS; k++)
			control->process[i].stream[k].fd = -1;
	}
}

/* ---- hand-overs ---- */

/* A descriptor of this process on the description, or -1. */
static int fd_on(int who, uint32_t description)
{
	const struct process *p = &control->process[who];

	for (int i = 0; i < SLOTS; i++)
		if (p->slot[i].fd >= 0 && p->slot[i].description == description)
			return p->slot[i].fd;
	for (int i = 0; i < STREAMS; i++)
		if (p->stream[i].fd >= 0 && p->stream[i].description == description)
			return p->stream[i].fd;
	return -1;
}

static long lock_and_unlock(int fd, int how)
{
	struct flock far = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = FAR, .l_len = 1};
	int command = how == 0 ? F_SETLK : F_OFD_SETLK;

	if (how == 2)
		return flock(fd, LOCK_EX | LOCK_NB) == 0 ? flock(fd, LOCK_UN) : -1;
	if (fcntl(fd, command, &far) < 0)
		return -1;
	far.l_type = F_UNLCK;
	return fcntl(fd, command, &far);
}

/* One of the ways in which a program makes sure that others see what it wrote. */
static void hand_over(int fd, unsigned way)
{
	struct stat st;
	long r;

	fresh_errno();
	switch (way % 6) {
	case 0: r = fsync(fd); break;
	case 1: r = fdatasync(fd); break;
	case 2: r = fstat(fd, &st); break;
	default:
		r = lock_and_unlock(fd, (int)(way % 6) - 3);
		if (r < 0) { /* somebody has a lock */
			fresh_errno();
			r = fdatasync(fd);
		}
	}
	say(" (@%d gives %u: %ld %d)", me, way % 6, r, errno);
}

/* What a killed process wrote: any member of its family can bring it out, by any name of the file. */
static void hand_over_orphan(const struct dirt *d)
{
	for (long i = 0; i < FILES; i++) {
		int fd;

		if (!raw_same(raw_identity(AT_FDCWD, name_of(i), 0), d->file))
			continue;
		fd = open(name_of(i), O_WRONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		hand_over(fd, 0);
		close(fd);
		return;
	}
}

static void serve_settle(void)
{
	const struct dirt *d = &control->about;
	int fd = fd_on(me, d->description);

	if (d->orphan) {
		hand_over_orphan(d);
	} else if (fd >= 0) {
		hand_over(fd, control->turn);
		if (control->position)
			say(" at %ld", (long)lseek(fd, 0, SEEK_CUR));
	}
}

static void end_here(int how, int code);

static void serve(void)
{
	if (control->asking == ASK_END) {
		control->asked = -1;
		end_here(0, 0);
	}
	serve_settle();
	__atomic_store_n(&control->asked, -1, __ATOMIC_SEQ_CST);
	ring();
}

static void ask(int who, enum asking asking)
{
	control->asking = asking;
	control->asked = who;
	ring();
	while (__atomic_load_n(&control->asked, __ATOMIC_SEQ_CST) == who) {
		uint32_t seen = __atomic_load_n(&control->bell, __ATOMIC_SEQ_CST);

		if (__atomic_load_n(&control->asked, __ATOMIC_SEQ_CST) == who)
			wait_for_bell(seen);
	}
}

static void drop_dirt(uint32_t i) { control->dirt[i] = control->dirt[--control->dirts]; }

/*
 * This process is about to touch `file` by `description` (0: by name or through memory).  `foreign`: it is
 * another program that does.
 */
static void settle_others(struct identity file, uint32_t description, bool foreign)
{
	for (uint32_t i = 0; i < control->dirts;) {
		struct dirt *d = &control->dirt[i];
		bool family = d->family == control->process[me].family && !foreign;
		bool same = description != 0 && d->description == description;

		if (!raw_same(d->file, file) || (d->process == me && !d->orphan) ||
		    (family && (same || control->family_exact))) {
			i++;
			continue;
		}
		control->about = *d;
		control->position = same;
		if (d->process == me)
			serve_settle();
		else
			ask(d->process, ASK_SETTLE);
		drop_dirt(i);
	}
}

static void note_dirt(struct identity file, uint32_t description)
{
	struct dirt new = {me, control->process[me].family, description, false, file};

	if (file.ino == 0)
		return;
	for (uint32_t i = 0; i < control->dirts; i++) {
		const struct dirt *d = &control->dirt[i];

		if (d->process == me && d->description == description && !d->orphan)
			return;
	}
	if (control->dirts == DIRT_MAX)
		unexpected("too many files written to");
	control->dirt[control->dirts++] = new;
}

static void before_path(const char *path, bool foreign)
{
	settle_others(raw_identity(AT_FDCWD, path, 0), 0, foreign);
	settle_others(raw_identity(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW), 0, foreign);
}

static void before_slot(const struct slot *s, bool foreign)
{
	if (s->fd >= 0)
		settle_others(raw_identity_fd(s->fd), s->description, foreign);
}

static void before_streams(void)
{
	for (int i = 0; i < STREAMS; i++)
		before_slot(&control->process[me].stream[i], false);
}

void processes_before(const struct op *op)
{
	const struct process *p = &control->process[me];
	const long *a = op->a;

	for (const char *takes = kind_of(op)->takes; *takes; takes++) {
		switch (*takes) {
		case 'A': before_streams(); continue;
		case 's':
		case 'w': before_slot(&p->slot[*a], false); break;
		case 'x': before_slot(&p->slot[*a], true); break;
		case 'f': before_path(name_of(*a), false); break;
		case 'F': before_path(name_of(*a), true); break;
		case 'k': before_slot(&p->stream[*a], false); break;
		case 'm': settle_others(map_identity(*a), 0, false); break;
		default: break;
		}
		a++;
	}
}

static void after_slot(const struct slot *s)
{
	if (s->fd >= 0)
		note_dirt(raw_identity_fd(s->fd), s->description);
}

static bool has_name(struct identity file)
{
	for (long i = 0; i < FILES; i++)
		if (raw_same(raw_identity(AT_FDCWD, name_of(i), 0), file))
			return true;
	return false;
}

/*
 * Whoever closes hands over.  And what nobody can get at any more must go: its inode number may be given to a
 * new file, and not at the same time in both runs.
 */
static void drop_old_dirt(void)
{
	for (uint32_t i = 0; i < control->dirts;) {
		const struct dirt *d = &control->dirt[i];

		if (d->orphan ? !has_name(d->file) : fd_on(d->process, d->description) < 0)
			drop_dirt(i);
		else
			i++;
	}
}

void processes_after(const struct op *op)
{
	const struct process *p = &control->process[me];
	const long *a = op->a;

	for (const char *takes = kind_of(op)->takes; *takes; takes++) {
		if (*takes == 'A') {
			for (int i = 0; i < STREAMS; i++)
				after_slot(&p->stream[i]);
			continue;
		}
		if (*takes == 'w')
			after_slot(&p->slot[*a]);
		else if (*takes == 'k')
			after_slot(&p->stream[*a]);
		a++;
	}
	drop_old_dirt();
}

/* ---- turns ---- */

void processes_done(void)
{
	uint32_t turn = control->turn + 1;

	/* what those who are not there would do is left out */
	while (turn < control->ops && !control->process[control->op[turn].process].alive)
		turn++;
	__atomic_store_n(&control->turn, turn, __ATOMIC_SEQ_CST);
	ring();
}

static void recover_now(void)
{
	/* an open for writing, and its first use, is what brings back the bytes of the dead */
	int fd = open(place_of("r"), O_WRONLY | O_CLOEXEC);

	if (fd >= 0) {
		fdatasync(fd);
		close(fd);
	}
}

static int member_of(int family)
{
	for (int i = 0; i < PROCESSES; i++)
		if (control->process[i].alive && control->process[i].family == family)
			return i;
	return -1;
}

static int holder_of(int family, uint32_t description)
{
	for (int i = 0; i < PROCESSES; i++)
		if (control->process[i].alive && control->process[i].family == family &&
		    fd_on(i, description) >= 0)
			return i;
	return -1;
}

/* An orderly end hands everything over.  After another one others of the family have it, or it is recovered.
 */
static void inherit_dirt(int dead, bool violent)
{
	for (uint32_t i = 0; i < control->dirts;) {
		struct dirt *d = &control->dirt[i];
		int heir;

		if (d->process != dead) {
			i++;
			continue;
		}
		heir = violent && !d->orphan ? holder_of(d->family, d->description) : -1;
		if (heir < 0 && (violent || d->orphan)) {
			heir = member_of(d->family);
			d->orphan = heir >= 0;
		}
		if (heir < 0) {
			drop_dirt(i);
			continue;
		}
		d->process = heir;
		i++;
	}
}

/* Waits for the one that is ending; its line is ours to end. */
static void reap(void)
{
	int dead = control->dying, status = -1;
	struct process *p = &control->process[dead];

	if (waitpid(p->pid, &status, 0) != p->pid)
		unexpected("waitpid");
	say(" -> %d", status);
	p->alive = false;
	for (int i = 0; i < PROCESSES; i++)
		if (control->process[i].parent == dead)
			control->process[i].parent = 0; /* which the kernel was told, too */
	for (int i = 0; i < SLOTS; i++)
		p->slot[i].fd = -1;
	for (int i = 0; i < STREAMS; i++)
		p->stream[i].fd = -1;
	control->reaper = control->dying = -1;
	if (control->violent) {
		control->killed = true;
		recover_now();
	}
	inherit_dirt(dead, control->violent);
}

const struct op *processes_next(void)
{
	for (;;) {
		uint32_t seen = __atomic_load_n(&control->bell, __ATOMIC_SEQ_CST);
		uint32_t turn = __atomic_load_n(&control->turn, __ATOMIC_SEQ_CST);

		if (control->asked == me) {
			serve();
			continue;
		}
		if (control->reaper == me) {
			reap();
			if (control->ending) {
				__atomic_store_n(&control->ending, 0, __ATOMIC_SEQ_CST);
				ring();
			} else {
				say("\n");
				processes_done();
			}
			continue;
		}
		if (turn >= control->ops && me == 0)
			return NULL;
		if (turn < control->ops && control->op[turn].process == me && control->dying < 0 &&
		    control->asked < 0)
			return &control->op[turn];
		wait_for_bell(seen);
	}
}

/* Process 0, at the end of a sequence. */
void processes_end_all(void)
{
	for (int i = 1; i < PROCESSES; i++) {
		if (!control->process[i].alive)
			continue;
		/* its streams may write as it ends: behind everything that was written before */
		for (uint32_t k = 0; k < control->dirts; k++) {
			control->about = control->dirt[k];
			control->position = false;
			if (control->about.process == 0)
				serve_settle();
			else
				ask(control->about.process, ASK_SETTLE);
		}
		control->dirts = 0;
		say("end of @%d", i);
		control->ending = 1;
		ask(i, ASK_END);
		while (__atomic_load_n(&control->ending, __ATOMIC_SEQ_CST)) {
			uint32_t seen = __atomic_load_n(&control->bell, __ATOMIC_SEQ_CST);

			if (control->reaper == 0) {
				reap();
				control->ending = 0;
			} else if (control->ending) {
				wait_for_bell(seen);
			}
		}
		say("\n");
	}
}

/* ---- coming and going ---- */

void op_fork(const long *a)
{
	int child = (int)a[0];
	pid_t pid;

	if (child <= 0 || child >= PROCESSES || control->process[child].alive) {
		say(" no");
		return;
	}
	control->process[child] = control->process[me];
	control->process[child].parent = me;
	control->process[child].pid = 0;
	control->process[child].alive = true;
	fresh_errno();
	pid = fork();
	if (pid == 0) {
		me = child;
		threads_forget();
		return;
	}
	if (pid < 0)
		control->process[child].alive = false;
	control->process[child].pid = pid;
	say_result(pid > 0);
}

static void end_here(int how, int code)
{
	control->violent = how >= 3;
	control->dying = me;
	control->reaper = control->process[me].parent;
	ring();
	switch (how) {
	case 0: exit(code);
	case 1: _exit(code);
	case 2: quick_exit(code);
	case 3: kill(getpid(), SIGKILL); break;
	case 4: abort();
	case 5: raw(SYS_exit_group, code, 0, 0, 0, 0, 0); break;
	default: raise(SIGTERM);
	}
	for (;;)
		pause();
}

void op_exit(const long *a)
{
	if (me == 0) {
		say(" no");
		return;
	}
	say(" by %ld", a[0]);
	end_here((int)a[0], (int)a[1] & 127);
}

void op_exec(const long *a)
{
	char *argv[] = {control->program, "resume", control->control_path, (char[]){(char)('0' + me), 0},
	                NULL};
	struct process *p = &control->process[me];
	int family = p->family;

	(void)a;
	if (me == 0) {
		say(" no");
		return;
	}
	/* what runs next is another family; everything is handed over by exec */
	p->family = 1 + (int)control->turn;
	for (uint32_t i = 0; i < control->dirts;) {
		if (control->dirt[i].process == me && !control->dirt[i].orphan)
			drop_dirt(i);
		else
			i++;
	}
	fresh_errno();
	execv(control->program, argv);
	p->family = family;
	say_result(-1);
}

/* After exec: descriptors that were not to be closed are there still, everything else is gone. */
void processes_resume(int who)
{
	struct process *p = &control->process[who];

	me = who;
	say(" resumed");
	for (int i = 0; i < SLOTS; i++) {
		if (p->slot[i].fd >= 0 && fcntl(p->slot[i].fd, F_GETFD) < 0)
			p->slot[i].fd = -1;
		else if (p->slot[i].fd >= 0)
			say(" %d", i);
	}
	streams_forget();
	say("\n");
	processes_done();
}

/* ---- other programs ---- */

/* machine helper FD SIZE SEED: writes in four pieces. */
int helper(int argc, char **argv)
{
	int fd = atoi(argv[2]);
	size_t n = (size_t)atol(argv[3]);
	static unsigned char piece[65536];

	(void)argc;
	if (n > sizeof piece)
		n = sizeof piece;
	for (uint64_t i = 0; i < 4; i++) {
		fill(piece, n, (uint64_t)atol(argv[4]) + i);
		if (write(fd, piece, n) != (ssize_t)n)
			return errno & 127;
	}
	return 0;
}

static int wait_for(pid_t pid)
{
	int status = -1;

	if (pid > 0 && waitpid(pid, &status, 0) != pid)
		return -2;
	return status;
}

static int spawn_it(char **argv, int fd)
{
	posix_spawn_file_actions_t actions;
	extern char **environ;
	pid_t pid = -1;
	int r;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, 1);
	r = posix_spawn(&pid, control->program, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	say(" %d", r);
	return r == 0 ? wait_for(pid) : -1;
}

static int vfork_it(char **argv, int fd)
{
	pid_t pid = vfork();

	if (pid == 0) {
		/* what it does to its descriptors must not show in us */
		if (dup2(fd, 1) < 0)
			_exit(101);
		close(fd);
		execv(control->program, argv);
		_exit(102);
	}
	return wait_for(pid);
}

static int fork_it(char **argv, int fd)
{
	char *none[] = {NULL};
	pid_t pid = fork();

	if (pid == 0) {
		if (dup2(fd, 1) < 0)
			_exit(101);
		execve(control->program, argv, none);
		_exit(102);
	}
	return wait_for(pid);
}

static int by_shell(char **argv, int fd, bool pipe)
{
	char command[2 * PATH_MAX];
	FILE *stream;

	snprintf(command, sizeof command, "'%s' helper %d %s %s", control->program, fd, argv[3], argv[4]);
	if (!pipe)
		return system(command);
	stream = popen(command, "r");
	return stream ? pclose(stream) : -1;
}

/* slot size seed how: another program writes to a descriptor that it inherits. */
void op_spawn(const long *a)
{
	char size[24], seed[24];
	char *argv[] = {control->program, "helper", "1", size, seed, NULL};
	int fd = fd_of(a[0]), status = -1;

	if (fd < 0) {
		say(" no");
		return;
	}
	snprintf(size, sizeof size, "%ld", a[1]);
	snprintf(seed, sizeof seed, "%ld", a[2]);
	switch (a[3]) {
	case 0: status = spawn_it(argv, fd); break;
	case 1: status = vfork_it(argv, fd); break;
	case 2: status = fork_it(argv, fd); break;
	case 3: status = by_shell(argv, fd, false); break;
	default: status = by_shell(argv, fd, true);
	}
	say(" %d", status);
}

/* file: what another program finds in it. */
void op_program(const long *a)
{
	char command[PATH_MAX + 64], line[256] = "";
	FILE *pipe;

	snprintf(command, sizeof command, "{ cksum < '%s'; } 2>/dev/null", name_of(a[0]));
	pipe = popen(command, "r");
	if (pipe) {
		if (!fgets(line, sizeof line, pipe))
			snprintf(line, sizeof line, "nothing\n");
		pclose(pipe);
	}
	line[strcspn(line, "\n")] = '\0';
	say(" %d %s", pipe != NULL, line);
}

/* slot size seed count: a child that only writes. */
void op_child(const long *a)
{
	int fd = fd_of(a[0]), status = -1;
	size_t n = (size_t)a[1] > BUFFER ? BUFFER : (size_t)a[1];
	unsigned char *buffer = buffer_here();
	pid_t pid = fork();

	if (pid == 0) {
		for (long i = 0; i < a[3]; i++) {
			fill(buffer, n, (uint64_t)(a[2] + i));
			if (write(fd, buffer, n) != (ssize_t)n)
				_exit(3);
		}
		_exit(lseek(fd, 0, SEEK_CUR) < 0 ? 4 : 0);
	}
	if (pid > 0)
		waitpid(pid, &status, 0);
	say(" %d %d at %ld", pid > 0, status, (long)lseek(fd, 0, SEEK_CUR));
}
