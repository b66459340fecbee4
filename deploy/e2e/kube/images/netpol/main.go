// Command netpol enforces NetworkPolicies on the one node of node.sh, with iptables: the plain
// bridge CNI does not. It polls the API server every half second and rewrites the chains after a
// change. Traffic of the node itself (probes) is always allowed, as the API's description permits.
//
//	netpol KUBECONFIG        in the cluster's network, as root
package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

type selector struct {
	MatchLabels      map[string]string
	MatchExpressions []struct {
		Key, Operator string
		Values        []string
	}
}

func (s *selector) matches(l map[string]string) bool {
	for k, v := range s.MatchLabels {
		if l[k] != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		v, has := l[e.Key]
		in := has && slices.Contains(e.Values, v)
		if e.Operator == "In" && !in || e.Operator == "NotIn" && in || e.Operator == "Exists" && !has || e.Operator == "DoesNotExist" && has {
			return false
		}
	}
	return true
}

type meta struct {
	Name, Namespace string
	Labels          map[string]string
}

type pod struct {
	Metadata meta
	Spec     struct {
		HostNetwork bool
		Containers  []struct {
			Ports []struct {
				Name, Protocol string
				ContainerPort  int
			}
		}
	}
	Status struct{ PodIP, Phase string }
}

type peer struct {
	PodSelector, NamespaceSelector *selector
	IPBlock                        *struct {
		CIDR   string
		Except []string
	}
}

type port struct {
	Protocol string
	Port     json.RawMessage
	EndPort  int
}

type policy struct {
	Metadata meta
	Spec     struct {
		PodSelector selector
		PolicyTypes []string
		Ingress     []struct {
			From  []peer
			Ports []port
		}
		Egress []struct {
			To    []peer
			Ports []port
		}
	}
}

var token, server string

func get[T any](path string) []T {
	req, _ := http.NewRequest("GET", server+path, nil)
	req.Header.Set("Authorization", "Bearer "+token)
	c := http.Client{Timeout: 5 * time.Second, Transport: transport}
	r, err := c.Do(req)
	if err != nil {
		log.Print(err)
		return nil
	}
	defer r.Body.Close()
	var v struct{ Items []T }
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		log.Print(err)
	}
	return v.Items
}

var transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // the server is on this node

func main() {
	b, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	token = regexp.MustCompile(`token: *([^\s}]+)`).FindStringSubmatch(string(b))[1]
	server = regexp.MustCompile(`server: *"?(https://[^\s",]+)`).FindStringSubmatch(string(b))[1]
	last := ""
	for ; ; time.Sleep(500 * time.Millisecond) {
		pods, spaces, policies := get[pod]("/api/v1/pods"), get[struct{ Metadata meta }]("/api/v1/namespaces"), get[policy]("/apis/networking.k8s.io/v1/networkpolicies")
		if spaces == nil {
			continue
		}
		ns := map[string]map[string]string{}
		for _, s := range spaces {
			ns[s.Metadata.Name] = s.Metadata.Labels
		}
		rules := render(pods, ns, policies)
		if rules == last {
			continue
		}
		cmd := exec.Command("iptables-restore", "--noflush", "-w", "5")
		cmd.Stdin = strings.NewReader(rules)
		if o, err := cmd.CombinedOutput(); err != nil {
			log.Printf("iptables-restore: %v: %s\n%s", err, o, rules)
			continue
		}
		for _, hook := range []string{"FORWARD", "INPUT"} {
			if exec.Command("iptables", "-w", "5", "-C", hook, "-j", "NETPOL").Run() != nil {
				_ = exec.Command("iptables", "-w", "5", "-I", hook, "-j", "NETPOL").Run()
			}
		}
		last = rules
		log.Printf("%d policies, %d pods", len(policies), len(pods))
	}
}

func render(pods []pod, ns map[string]map[string]string, policies []policy) string {
	live := pods[:0:0]
	for _, p := range pods {
		if p.Status.PodIP != "" && !p.Spec.HostNetwork && (p.Status.Phase == "Running" || p.Status.Phase == "Pending") {
			live = append(live, p)
		}
	}
	var chains, body bytes.Buffer
	fmt.Fprintln(&chains, ":NETPOL - [0:0]")
	fmt.Fprintln(&body, "-A NETPOL -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN")
	for _, p := range live {
		for _, way := range []string{"Egress", "Ingress"} {
			isolated := false
			var allow []string
			for _, np := range policies {
				if np.Metadata.Namespace != p.Metadata.Namespace || !np.Spec.PodSelector.matches(p.Metadata.Labels) || !slices.Contains(np.Spec.PolicyTypes, way) {
					continue
				}
				isolated = true
				if way == "Ingress" {
					for _, r := range np.Spec.Ingress {
						allow = append(allow, matches("-s", r.From, r.Ports, np.Metadata.Namespace, live, ns, &p)...)
					}
				} else {
					for _, r := range np.Spec.Egress {
						allow = append(allow, matches("-d", r.To, r.Ports, np.Metadata.Namespace, live, ns, nil)...)
					}
				}
			}
			if !isolated {
				continue
			}
			c := fmt.Sprintf("NP-%.18x", sha256.Sum256([]byte(way+p.Metadata.Namespace+"/"+p.Metadata.Name)))
			c = c[:24]
			fmt.Fprintf(&chains, ":%s - [0:0]\n", c)
			fmt.Fprintf(&body, "-A NETPOL %s %s/32 -j %s\n", map[string]string{"Egress": "-s", "Ingress": "-d"}[way], p.Status.PodIP, c)
			for _, a := range allow {
				fmt.Fprintf(&body, "-A %s %s -j RETURN\n", c, a)
			}
			fmt.Fprintf(&body, "-A %s -j DROP\n", c)
		}
	}
	return "*filter\n" + chains.String() + body.String() + "COMMIT\n"
}

// matches gives iptables' matches for a rule: its peers (all when none) times its ports.
// A named port is the one of the isolated pod (ingress) or of each peer (egress).
func matches(flag string, peers []peer, ports []port, space string, pods []pod, ns map[string]map[string]string, self *pod) []string {
	type end struct {
		match string
		pod   *pod
	}
	var ends []end
	if len(peers) == 0 {
		ends = []end{{"", nil}}
	}
	for _, pe := range peers {
		if pe.IPBlock != nil {
			m := flag + " " + pe.IPBlock.CIDR
			// iptables takes one address per direction: exceptions go by iprange of the other kind.
			for _, x := range pe.IPBlock.Except {
				lo, hi := bounds(x)
				m += fmt.Sprintf(" -m iprange ! --%s-range %s-%s", map[string]string{"-s": "src", "-d": "dst"}[flag], lo, hi)
			}
			ends = append(ends, end{m, nil})
			continue
		}
		for i, p := range pods {
			if pe.NamespaceSelector == nil && p.Metadata.Namespace != space || pe.NamespaceSelector != nil && !pe.NamespaceSelector.matches(ns[p.Metadata.Namespace]) {
				continue
			}
			if pe.PodSelector == nil || pe.PodSelector.matches(p.Metadata.Labels) {
				ends = append(ends, end{flag + " " + p.Status.PodIP + "/32", &pods[i]})
			}
		}
	}
	var all []string
	for _, e := range ends {
		if len(ports) == 0 {
			all = append(all, e.match)
		}
		for _, po := range ports {
			proto := strings.ToLower(po.Protocol)
			if proto == "" {
				proto = "tcp"
			}
			m := e.match + " -p " + proto
			if len(po.Port) > 0 {
				n, err := strconv.Atoi(string(po.Port))
				if err != nil {
					var name string
					_ = json.Unmarshal(po.Port, &name)
					target := self
					if target == nil {
						target = e.pod
					}
					if n = named(target, name); n == 0 {
						continue
					}
				}
				m += fmt.Sprintf(" -m %s --dport %d", proto, n)
				if po.EndPort > n {
					m += fmt.Sprintf(":%d", po.EndPort)
				}
			}
			all = append(all, m)
		}
	}
	return all
}

func named(p *pod, name string) int {
	if p == nil {
		return 0
	}
	for _, c := range p.Spec.Containers {
		for _, o := range c.Ports {
			if o.Name == name {
				return o.ContainerPort
			}
		}
	}
	return 0
}

func bounds(cidr string) (string, string) {
	var a, b, c, d, n uint32
	fmt.Sscanf(cidr, "%d.%d.%d.%d/%d", &a, &b, &c, &d, &n)
	lo := (a<<24 | b<<16 | c<<8 | d) &^ (1<<(32-n) - 1)
	hi := lo | (1<<(32-n) - 1)
	s := func(v uint32) string { return fmt.Sprintf("%d.%d.%d.%d", v>>24, v>>16&255, v>>8&255, v&255) }
	return s(lo), s(hi)
}
