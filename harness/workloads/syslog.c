// SPDX-License-Identifier: Apache-2.0
/*
 * lab-syslog: load for a syslog daemon.  Sends numbered messages to its datagram socket, at most --window of
 * them unanswered; the daemon passes each on, by UDP, after it has dealt with it in its own way (a file).
 * The latency of a message: from before it was sent until its answer came.
 *
 * A time of warming comes first and is not counted.  Prints one JSON object: messages counted and in all,
 * seconds, and the latencies' percentiles in microseconds.  Answers have to come in order: the daemon has
 * one queue.
 */
#include "lab.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { WINDOW_MAX = 4096, PATIENCE_S = 20, MESSAGE_MAX = 512 };

struct options {
	const char *socket;
	uint64_t port, window, warmup_ms, ms, most;
};

static struct options parse(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'},
		{"port", required_argument, NULL, 'p'},
		{"window", required_argument, NULL, 'w'},
		{"warmup-ms", required_argument, NULL, 'W'},
		{"ms", required_argument, NULL, 'm'},
		{"most", required_argument, NULL, 'n'},
		{NULL, 0, NULL, 0},
	};
	struct options found = {.window = 16, .warmup_ms = 300, .ms = 2000, .most = 8000000};
	int key;

	while ((key = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (key) {
		case 's': found.socket = optarg; break;
		case 'p': found.port = lab_number("--port", optarg, 1, 65535); break;
		case 'w': found.window = lab_number("--window", optarg, 1, WINDOW_MAX); break;
		case 'W': found.warmup_ms = lab_number("--warmup-ms", optarg, 0, 3600000); break;
		case 'm': found.ms = lab_number("--ms", optarg, 1, 3600000); break;
		case 'n': found.most = lab_number("--most", optarg, 1, 100000000); break;
		default: exit(LAB_EXIT_USAGE);
		}
	}
	if (!found.socket || !found.port)
		lab_usage("--socket and --port are needed");
	return found;
}

static int open_sender(const char *path)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof(to.sun_path))
		lab_usage("%s: too long for a socket", path);
	strcpy(to.sun_path, path);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
		lab_die("%s", path);
	return fd;
}

static int open_receiver(uint64_t port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	struct timeval patience = {.tv_sec = PATIENCE_S};
	int room = 8 << 20;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0)
		lab_die("port %llu", (unsigned long long)port);
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)) < 0)
		lab_die("setsockopt");
	return fd;
}

static void send_message(int fd, uint64_t number)
{
	char text[MESSAGE_MAX];
	int length =
		snprintf(text, sizeof(text),
	                 "<13>Jan  1 00:00:00 lab[1]: %llu request from 10.0.0.1 took %llu us, status 200, "
	                 "2326 bytes",
	                 (unsigned long long)number, (unsigned long long)(number % 977));

	if (send(fd, text, (size_t)length, 0) != length)
		lab_die("send");
}

/* The number of the message that was dealt with. */
static uint64_t receive_answer(int fd)
{
	char text[MESSAGE_MAX];
	ssize_t length = recv(fd, text, sizeof(text) - 1, 0);

	if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		lab_usage("no answer within %d s: a message was lost, or the daemon does not pass them on",
		          PATIENCE_S);
	if (length < 0)
		lab_die("recv");
	text[length] = '\0';
	return strtoull(text, NULL, 10);
}

static int by_value(const void *a, const void *b)
{
	uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;

	return (one > other) - (one < other);
}

static void print(uint32_t *latency_ns, uint64_t count, uint64_t total, uint64_t elapsed_ns)
{
	static const struct {
		const char *name;
		unsigned per_mille;
	} shares[] = {{"p50", 500}, {"p90", 900}, {"p95", 950}, {"p99", 990}, {"p999", 999}};
	double sum = 0;

	if (count == 0)
		lab_usage("not one message was answered in time");
	qsort(latency_ns, count, sizeof(*latency_ns), by_value);
	for (uint64_t i = 0; i < count; i++)
		sum += latency_ns[i];
	printf("{\"syncs\": %llu, \"syncs_with_warmup\": %llu, \"seconds\": %.6f", (unsigned long long)count,
	       (unsigned long long)total, (double)elapsed_ns / 1e9);
	for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++)
		printf(", \"%s_us\": %.1f", shares[i].name,
		       latency_ns[count * shares[i].per_mille / 1000] / 1e3);
	printf(", \"mean_us\": %.1f, \"max_us\": %.1f}\n", sum / (double)count / 1e3,
	       latency_ns[count - 1] / 1e3);
}

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv);
	int out = open_sender(options.socket), in = open_receiver(options.port);
	uint64_t *sent_ns = lab_buffer(WINDOW_MAX * sizeof(*sent_ns));
	uint32_t *latency_ns = lab_buffer(options.most * sizeof(*latency_ns));
	uint64_t sent = 0, answered = 0, counted = 0, begin_ns = lab_now_ns(), last_ns = begin_ns;
	const uint64_t warm_ns = begin_ns + options.warmup_ms * 1000000,
		       over_ns = warm_ns + options.ms * 1000000;

	begin_ns = warm_ns;
	for (;;) {
		while (sent < options.most && sent - answered < options.window && lab_now_ns() < over_ns) {
			sent_ns[sent % WINDOW_MAX] = lab_now_ns();
			send_message(out, sent++);
		}
		if (answered == sent)
			break;
		if (receive_answer(in) != answered)
			lab_usage("an answer is out of order: message %llu was expected",
			          (unsigned long long)answered);
		last_ns = lab_now_ns();
		if (last_ns >= warm_ns) {
			uint64_t taken = last_ns - sent_ns[answered % WINDOW_MAX];

			latency_ns[counted++] = taken > UINT32_MAX ? UINT32_MAX : (uint32_t)taken;
		}
		answered++;
	}
	print(latency_ns, counted, sent, last_ns - begin_ns);
	return 0;
}
