// SPDX-License-Identifier: Apache-2.0
/*
 * A thread writes while another one passes the descriptor to another process, which writes, too.
 *
 *   passing give SOCKET append|stream COUNT FILE...    waits for "go"
 *   passing take SOCKET append|stream COUNT FILE...    prints "ready" when it listens
 *
 * Both write COUNT records to each file.  The giver's descriptor is passed after 0, 5, 12, 300, 1,500 and 5
 * records, and so on; every other time it is a duplicate.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { RECORD = 100 };

static int count, fd, who;
static atomic_int written;

static void stop(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void *write_all(void *unused)
{
	char record[RECORD + 1];

	(void)unused;
	for (int i = 0; i < count; i++) {
		int n = snprintf(record, sizeof record, "%d %08d ", who, i);

		memset(record + n, 'a' + i % 26, (size_t)(RECORD - n - 1));
		record[RECORD - 1] = '\n';
		if (write(fd, record, RECORD) != RECORD)
			stop("write");
		atomic_store(&written, i + 1);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static const int before[] = {0, 5, 12, 300, 1500};
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int s = socket(AF_UNIX, SOCK_SEQPACKET, 0), append;
	char line[16];

	if (argc < 6)
		return 2;
	who = strcmp(argv[1], "take") == 0;
	append = strcmp(argv[3], "append") == 0 ? O_APPEND : 0;
	count = atoi(argv[4]);
	snprintf(name.sun_path, sizeof name.sun_path, "%s", argv[2]);
	if (who && (bind(s, (struct sockaddr *)&name, sizeof name) || listen(s, 1)))
		stop(argv[2]);
	printf("ready\n");
	fflush(stdout);
	if (who)
		s = accept(s, NULL, NULL);
	else if (!fgets(line, sizeof line, stdin) || connect(s, (struct sockaddr *)&name, sizeof name))
		stop(argv[2]);
	for (int i = 5; i < argc; i++) {
		char control[CMSG_SPACE(sizeof fd)] = {0}, text[1] = {'x'};
		struct iovec iov = {text, 1};
		struct msghdr m = {.msg_iov = &iov,
		                   .msg_iovlen = 1,
		                   .msg_control = control,
		                   .msg_controllen = sizeof control};
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		pthread_t writer;
		int passed;

		if (who) {
			if (recvmsg(s, &m, 0) != 1)
				stop("recvmsg");
			memcpy(&fd, CMSG_DATA(c), sizeof fd);
			write_all(NULL);
			if (close(fd) || send(s, "x", 1, 0) != 1)
				stop("close");
			continue;
		}
		fd = open(argv[i], O_RDWR | O_CREAT | append, 0644);
		atomic_store(&written, 0);
		if (fd < 0 || pthread_create(&writer, NULL, write_all, NULL))
			stop(argv[i]);
		while (atomic_load(&written) < before[i % 5])
			sched_yield();
		passed = i & 1 ? dup(fd) : fd;
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(c), &passed, sizeof passed);
		if (sendmsg(s, &m, 0) != 1)
			stop("sendmsg");
		if (passed != fd)
			close(passed);
		if (recv(s, text, 1, 0) != 1 || pthread_join(writer, NULL) || close(fd))
			stop("the end");
	}
	return 0;
}
