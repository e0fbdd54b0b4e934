package config

import (
	"errors"
	"net"
	"strings"
)

// desk returns the settings of the operator's page.
func desk() []setting {
	return []setting{
		row("desk.listen", "WEFT_DESK_LISTEN", "desk-listen", "127.0.0.1:9109", "Address and port of the operator's page; empty for none. Port 0 picks a free one, and so does the default when it is taken. An address off loopback needs desk.web_config with TLS and a login.").
			with("address", "host:port", func(c *Config) *string { return &c.Desk.Listen }, parseListen),
		row("desk.hosts", "WEFT_DESK_HOSTS", "desk-hosts", "", "Further host names of that page, separated by commas; a request that names another host than these, localhost, 127.0.0.1 or [::1] is refused.").
			with("hosts", "names or addresses without ports", func(c *Config) *string { return &c.Desk.Hosts }, parseHosts),
		row("desk.web_config", "WEFT_DESK_WEB_CONFIG", "desk-web-config", "", "File with certificates and users of that page, in the format of the Prometheus exporter toolkit; users are read again at each request, certificates at each connection.").
			with("file", "", func(c *Config) *string { return &c.Desk.WebConfig }, parseText),
		row("desk.actions", "WEFT_DESK_ACTIONS", "desk-actions", "false", "Whether that page replays, discards, pauses, hands over and changes the log's level, for desk.operators alone. Needs desk.web_config with a login, on loopback too.").
			bool(func(c *Config) *bool { return &c.Desk.Actions }),
		row("desk.operators", "WEFT_DESK_OPERATORS", "desk-operators", "", "Who may act on that page, separated by commas: users of desk.web_config, or names in verified client certificates. Everybody else only reads.").
			with("names", "", func(c *Config) *string { return &c.Desk.Operators }, parseNames),
	}
}

func parseListen(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", errors.New("want an address and a port such as 127.0.0.1:9109, or nothing for no page")
	}
	if _, err := parseInt(port, 0, 65535); err != nil {
		return "", errors.New("the port is out of range: want 0 to 65535")
	}
	if host, err = parseHost(host); err != nil {
		return "", err
	}
	return net.JoinHostPort(host, port), nil
}

func parseHosts(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	var hosts []string
	for host := range strings.SplitSeq(s, ",") {
		host, err := parseHost(strings.TrimSpace(host))
		if err != nil {
			return "", err
		}
		hosts = append(hosts, strings.ToLower(host))
	}
	return strings.Join(hosts, ","), nil
}

// parseNames reads names separated by commas.
func parseNames(s string) (string, error) {
	var names []string
	for name := range strings.SplitSeq(s, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return strings.Join(names, ","), nil
}
