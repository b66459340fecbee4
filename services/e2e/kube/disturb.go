package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"signalbox.dev/services/e2e/kill"
)

// settling is how long conversations go on before and after something is broken.
const settling = 10 * time.Second

// under runs a disturbance under load.
func (s *suite) under(ctx context.Context, r *result, disturb func(context.Context, kill.Died) error) error {
	return s.load(ctx, r, kill.Config{Rate: s.rate, Disturb: s.settled(disturb)})
}

// settled returns a disturbance that is between two quiet times, and ends when everything is ready
// again.
func (s *suite) settled(disturb func(context.Context, kill.Died) error) func(context.Context, kill.Died) error {
	return func(ctx context.Context, died kill.Died) error {
		if err := sleep(ctx, settling); err != nil {
			return err
		}
		err := disturb(ctx, died)
		return errors.Join(err, s.ready(ctx), s.healthy(ctx), sleep(ctx, settling))
	}
}

// quiet is the load without a disturbance, to compare with.
func quiet(ctx context.Context, s *suite, r *result) error {
	return s.under(ctx, r, func(ctx context.Context, died kill.Died) error {
		died("nothing")
		return nil
	})
}

// deployments returns the Deployments of the release.
func (s *suite) deployments(ctx context.Context) ([]string, error) {
	out, err := s.kubectl(ctx, "get", "deployments", "-o", "jsonpath={.items[*].metadata.name}")
	return strings.Fields(out), err
}

// component returns the part of a pod's or Deployment's name that says what it is.
func component(name string) string {
	name = strings.TrimPrefix(name, "signalbox-")
	for _, c := range []string{"gateway", "agent-runner", "tool-executor", "document-sync", "credential-broker", "simulator", "nats", "postgres"} {
		if strings.HasPrefix(name, c) {
			return c
		}
	}
	return name
}

// rollingRestart restarts every Deployment, one after the other, but not the simulator: it breaks its
// answers off when it stops, like a provider that goes down, and a step that is asked again is a pause.
func rollingRestart(ctx context.Context, s *suite, r *result) error {
	return s.under(ctx, r, func(ctx context.Context, died kill.Died) error {
		names, err := s.deployments(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			if component(name) == "simulator" {
				continue
			}
			died(component(name))
			if _, err := s.kubectl(ctx, "rollout", "restart", "deployment/"+name); err != nil {
				return err
			}
			if _, err := s.kubectl(ctx, "rollout", "status", "deployment/"+name, "--timeout="+patience.String()); err != nil {
				return err
			}
		}
		return nil
	})
}

// upgrade brings another version into service with helm, and then the first one again.
func upgrade(ctx context.Context, s *suite, r *result) error {
	if err := s.loadImages(ctx, "*-next.tar"); err != nil {
		return err
	}
	return s.under(ctx, r, func(ctx context.Context, died kill.Died) error {
		died("upgrade")
		if err := s.chart(ctx, "upgrade", "", "--set", "image.tag=next", "--wait"); err != nil {
			return err
		}
		died("rollback")
		return s.helm(ctx, "rollback", "signalbox", "--wait", "--timeout", patience.String())
	})
}

// podsKilled kills a pod of a service, the simulator or NATS every five seconds.
func podsKilled(ctx context.Context, s *suite, r *result) error {
	length := time.Minute
	if s.long {
		length = 10 * time.Minute
	}
	return s.under(ctx, r, func(ctx context.Context, died kill.Died) error {
		for begun := time.Now(); time.Since(begun) < length; {
			pods, err := s.pods(ctx, "app.kubernetes.io/instance=signalbox")
			if err != nil {
				return err
			}
			if len(pods) > 0 {
				pod := pods[s.rnd.IntN(len(pods))]
				died(component(pod))
				if err := s.killPod(ctx, pod); err != nil {
					return err
				}
			}
			if err := sleep(ctx, 5*time.Second); err != nil {
				return err
			}
		}
		return nil
	})
}

// kubeletStopped stops the node's kubelet for a while. It is shorter than the time after which the
// controllers take the node for lost, which would take the only node out of every Service.
func kubeletStopped(ctx context.Context, s *suite, r *result) error {
	text, err := s.node(ctx, "enter", "cat", filepath.Join(s.state, "pid", "kubelet"))
	if err != nil {
		return err
	}
	signal := func(sig syscall.Signal) error {
		_, err := s.node(ctx, "enter", "kill", fmt.Sprintf("-%d", sig), strings.TrimSpace(text))
		return err
	}
	return s.under(ctx, r, func(ctx context.Context, died kill.Died) error {
		died("kubelet")
		if err := signal(syscall.SIGSTOP); err != nil {
			return err
		}
		err := sleep(ctx, 25*time.Second)
		return errors.Join(err, signal(syscall.SIGCONT))
	})
}

// natsLeader returns the pod of the server that leads the cluster's metadata.
func (s *suite) natsLeader(ctx context.Context) (string, error) {
	pods, err := s.pods(ctx, "app=nats")
	if err != nil {
		return "", err
	}
	for _, pod := range pods {
		ip, err := s.kubectl(ctx, "get", "pod", pod, "-o", "jsonpath={.status.podIP}")
		if err != nil {
			return "", err
		}
		var got struct {
			Meta struct{ Leader string } `json:"meta_cluster"`
		}
		if err := getJSON(ctx, "http://"+ip+":8222/jsz", &got); err == nil && got.Meta.Leader != "" {
			return got.Meta.Leader, nil
		}
	}
	return "", errors.New("no NATS server knows a leader")
}

func getJSON(ctx context.Context, url string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(v)
}

// natsLost kills the leader of the NATS cluster and, when it is whole again, another server. Each
// comes back with an empty disk.
func natsLost(ctx context.Context, s *suite, r *result) error {
	return s.under(ctx, r, func(ctx context.Context, died kill.Died) error {
		leader, err := s.natsLeader(ctx)
		if err != nil {
			return err
		}
		died("nats leader")
		if err := errors.Join(s.killPod(ctx, leader), sleep(ctx, settling), s.ready(ctx), sleep(ctx, settling)); err != nil {
			return err
		}
		if leader, err = s.natsLeader(ctx); err != nil {
			return err
		}
		n, err := strconv.Atoi(strings.TrimPrefix(leader, "nats-"))
		if err != nil {
			return fmt.Errorf("the leader is %q: %w", leader, err)
		}
		died("nats server")
		return errors.Join(s.killPod(ctx, fmt.Sprintf("nats-%d", (n+1)%3)), sleep(ctx, settling))
	})
}

// postgresFailover kills the primary, promotes its synchronous standby, and lets the former
// primary come back as the standby: what an operator such as CloudNativePG does.
func postgresFailover(ctx context.Context, s *suite, r *result) error {
	return s.under(ctx, r, func(ctx context.Context, died kill.Died) error {
		died("postgres")
		begun := time.Now()
		// Without pods of its own it cannot come back as a second primary.
		if _, err := s.kubectl(ctx, "scale", "statefulset/postgres-a", "--replicas=0"); err != nil {
			return err
		}
		if err := s.killPod(ctx, "postgres-a-0"); err != nil {
			return err
		}
		// A pod that is killed like this lives on for a second or two. Next to the new primary,
		// it would answer reads on open connections with what is no longer true.
		const gone = `DO $$ BEGIN
			WHILE EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming') LOOP PERFORM pg_sleep(0.02); END LOOP;
		END $$`
		// Commits would wait for a standby that is not there yet.
		if err := s.sql(ctx, "postgres-b-0", gone, "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()", "SELECT pg_promote()"); err != nil {
			return err
		}
		r.Figures = append(r.Figures, figure{"primary killed to standby promoted", time.Since(begun).Seconds(), "s"})
		if err := sleep(ctx, settling); err != nil {
			return err
		}
		if _, err := s.kubectl(ctx, "scale", "statefulset/postgres-a", "--replicas=1"); err != nil {
			return err
		}
		if _, err := s.kubectl(ctx, "rollout", "status", "statefulset/postgres-a", "--timeout="+patience.String()); err != nil {
			return err
		}
		return s.sql(ctx, "postgres-b-0", "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
	})
}

// sql runs statements in a PostgreSQL pod.
func (s *suite) sql(ctx context.Context, pod string, statements ...string) error {
	args := []string{"exec", pod, "--", "sh", "-c", `PGPASSWORD=$POSTGRES_PASSWORD exec psql "$@"`, "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "/tmp", "-U", "postgres"}
	for _, one := range statements {
		args = append(args, "-c", one)
	}
	_, err := s.kubectl(ctx, args...)
	return err
}
